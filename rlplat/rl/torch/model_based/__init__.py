"""Networks of model-based algorithms: ensembles that predict what an action does."""
