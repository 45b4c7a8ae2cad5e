# One member of a cluster:
#   docker build --tag quorate .
#   docker run --volume ./etc:/etc/quorate:ro --volume data:/var/lib/quorate quorate
# where etc/ has node.toml, and the member's certificate, its key and the CA (owned by user 7000).
# compose.yaml runs three of them on one machine.

FROM python:3.13-slim AS build
# The compiled parts are optional; with them a member serves several times as many requests.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN python -m venv /opt/quorate
WORKDIR /src
COPY requirements.lock .
RUN /opt/quorate/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock
COPY . .
RUN /opt/quorate/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13-slim
COPY --from=build /opt/quorate /opt/quorate
ENV PATH=/opt/quorate/bin:$PATH
# A number, so that Kubernetes can see that it is not root.
RUN useradd --system --uid 7000 --create-home --home-dir /var/lib/quorate quorate
USER 7000
VOLUME /var/lib/quorate
# Clients, browsers and Prometheus (the table [web]), and the other members.
EXPOSE 7000 8001 17000
# The member answers what it has received, then ends; it takes some seconds at most.
STOPSIGNAL SIGTERM
ENTRYPOINT ["quorate"]
CMD ["run", "/etc/quorate/node.toml"]
