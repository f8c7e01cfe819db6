"""Policy gradients from fresh rollouts."""
