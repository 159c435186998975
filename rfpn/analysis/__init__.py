"""What trained recurrent models do over time: scores by step, states, figures."""
