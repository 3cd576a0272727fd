"""Commands that look into a running cluster: one file each, and how they find it (`cluster_view`)."""
