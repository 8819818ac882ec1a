def answer(asked):
    return {}
