"""Comments in `param_str` by which the swap tells a layer, or the way back, what the layer's own fields cannot say."""

# the net computes all gradients: a loss layer must answer for those of its labels too
FORCED = "# clgraft force_backward"
