"""From a finished run to its report: ``report.json``, ``report.html``, the termination message, the words on stderr."""
