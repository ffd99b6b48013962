"""Matrix product of x_t transposed and w."""


def reference(x_t, w):
    return x_t.T @ w
