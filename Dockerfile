# rlplat in a container, from the wheel:   docker build -t rlplat .
# More or fewer extras of pyproject.toml:  docker build --build-arg EXTRAS=torch,mujoco,video -t rlplat .
# Without a GPU, torch's small wheels:     docker build --build-arg PIP_EXTRA_INDEX_URL=... -t rlplat .  (docs/docker.md)
FROM python:3.11-slim AS wheel
WORKDIR /src
COPY constraints.txt /tmp/
RUN pip install --no-cache-dir -c /tmp/constraints.txt hatchling
COPY pyproject.toml README.md LICENSE ./
COPY rlplat rlplat
COPY algorithms algorithms
COPY configs configs
RUN python -m hatchling build -t wheel -d /dist

FROM python:3.11-slim
ARG EXTRAS=torch,atari,box2d,video,dashboard,serve,export
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt /tmp/
COPY --from=wheel /dist /tmp/dist
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /tmp/dist/rlplat-*.whl)[$EXTRAS]" && rm -r /tmp/dist
RUN useradd --create-home rlplat && mkdir /work && chown rlplat /work
USER rlplat
WORKDIR /work
ENTRYPOINT ["rlplat"]
CMD ["--help"]
