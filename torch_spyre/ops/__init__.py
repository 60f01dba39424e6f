"""Operations outside the compiler: what runs on the host, and how that is reported."""
