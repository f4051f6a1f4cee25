"""Guards against memory that MXNet has already freed when it calls a Custom operator."""
