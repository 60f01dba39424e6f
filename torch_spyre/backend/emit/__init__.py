"""Steps to SpyreCode: register allocation, the program, its files and their cache."""
