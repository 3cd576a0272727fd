"""Clusters and jobs of Kubernetes: manifests for the KubeRay operator, and kubectl that sends them."""
