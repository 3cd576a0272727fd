"""Learners and the weights that leave them: groups, parameter servers, optimizers, reductions."""
