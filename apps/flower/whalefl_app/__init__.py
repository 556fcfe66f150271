"""The two halves of a federation as Flower loads them."""
