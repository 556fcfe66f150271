"""The server half."""

from whalefl.flower.server_app import make_app

app = make_app()
