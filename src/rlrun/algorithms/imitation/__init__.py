"""Learning from an expert by a discriminator: it says expert and policy apart, and the policy is paid to deceive it."""
