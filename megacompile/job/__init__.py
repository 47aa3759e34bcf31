"""The steps of a build, one file each; `builder` calls them in order."""
