"""How far a training has come, recognised from what it prints; standard library alone."""
