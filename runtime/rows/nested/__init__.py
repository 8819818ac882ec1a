"""Fields that Arrow or JSON holds in another form: their types, texts and packed bytes."""
