"""What the operator chooses: settings, and the texts that say them."""
