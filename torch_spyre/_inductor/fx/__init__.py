"""ATen to ATen: custom operators, decompositions and passes over the FX graph."""
