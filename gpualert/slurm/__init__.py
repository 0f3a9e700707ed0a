"""Jobs that Slurm already has, without any wrapper in them: watched from outside, one incident of each that fails."""
