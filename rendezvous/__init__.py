"""Who is here and who sits where: layout, plans, election, and the store that holds them."""
