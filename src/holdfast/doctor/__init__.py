"""What is wrong with a set-up, and how to fix it? Looks, changes nothing.

Entry modules: `facts` and `checks` (a run and its machine), `script_checks` (a training or batch script),
`rehearsing` (a script, run for some steps and killed), `attempts_told`. Imported by the command line only.
"""
