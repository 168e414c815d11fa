"""Numbers to tables and figures."""
