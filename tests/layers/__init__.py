"""The layers of torch.nn and the functions of torch.nn.functional: built, exported, lowered, compared."""
