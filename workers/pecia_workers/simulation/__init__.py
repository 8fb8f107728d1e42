"""The worker's own policies over models of an engine, in simulated time: what a fleet would do, before there is one."""
