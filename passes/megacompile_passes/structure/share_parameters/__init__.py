"""`share-parameters`: several tensors of a module become one, equal ones or those of alike blocks.

Which blocks are alike is found in `modules`; here lie the values they get.
"""
