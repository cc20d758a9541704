"""os-ken (Ryu) applications, and the pure functions of the graph behind them."""
