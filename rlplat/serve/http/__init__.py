"""The door to the outside: the only imports of Starlette and uvicorn."""
