"""The lesson builder: one text file a lesson, from which both of its notebooks are made.

    solutions/03_dpo.py  →  solutions/03_dpo.ipynb   the instructor's: answers whole, executed on `tiny`
                         →  notebooks/03_dpo.ipynb   the student's: answers blanked, no outputs

`kit` finds and reads the sources, `answers` cuts the reference answers out of their modules, `notebooks`
puts cells together, `execute` and `outputs` run them and clean what they print, `make` writes files, `leaks`
and `review` are `--check`. Nothing here imports the answers: they are read as text.
"""
