"""How MXNet runs the operators: attributes, registration through its C interface, and execution."""
