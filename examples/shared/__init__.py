"""What the commands of the examples share.

interrupts.py   Ctrl-C that is not lost
quiet.py        without the warnings whose subject is in the report
words.py        numbers for people
"""
