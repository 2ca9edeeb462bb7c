"""How each engine divides a device's memory."""
