"""What is learned by this package's own gradients: a module a task, trained by ``linattn-ref train``."""
