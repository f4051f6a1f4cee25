"""What operators mean: functions from values of a graph to values of a graph, for every adapter."""
