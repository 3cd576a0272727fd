"""The processes of a private cluster and their start: driver, node, zygote."""
