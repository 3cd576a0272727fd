"""serve.yaml: several applications, each on its port, by one file that can be changed while they run."""
