"""x"""
def install() -> None:
    """x"""
