"""The subcommands of `testbed`: one module each.

A module offers `add(commands)`, which adds its parser; the parser's default `command` takes the
parsed options and returns the exit status. Everything a command needs is imported when it runs, so
that no command pays for the packages of another one.
"""
