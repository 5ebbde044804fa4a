"""The command line: the same code as the library.

`main` finds the verb and explains errors; a verb returns a `result`, which `render` prints. The verbs are in
`stored` (list, show, verify, diff, export, prune), `running` (run, app, slurm, halt) and `trials` (demo,
bench, plan, doctor, rehearse). Imported by nothing.
"""
