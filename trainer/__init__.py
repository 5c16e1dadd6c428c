"""What runs inside the training container. Imports nothing else of this project."""
