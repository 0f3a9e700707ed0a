"""The ranks of a job as files: in a directory that they share, in run directories, in a launcher's logs."""
