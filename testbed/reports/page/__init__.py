"""The report of a run or a sweep: one HTML page that needs nothing else.

document.py lays the page out; words.py, cautions.py and tables.py write its sections; timeline.py
and prefixes.py prepare the data that timeline.js and prefixes.js draw.
"""
