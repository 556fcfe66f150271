"""The device half."""

from whalefl.flower.client_app import make_app

app = make_app()
