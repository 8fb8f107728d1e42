"""What keeps promises when something breaks: relay, reconciler, judge, deadlines; and ends what was kept long enough.

Any number of instances may run.
"""
