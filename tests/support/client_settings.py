"""Settings for clients that never need a broker's answer."""

SERVERS = {"bootstrap.servers": "localhost:9092"}
SCRAM = {
    **SERVERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": "marker-secret",
}
OIDC = {
    **SERVERS,
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "relay",
    "sasl.oauthbearer.client.secret": "marker-secret",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.test/token",
}
