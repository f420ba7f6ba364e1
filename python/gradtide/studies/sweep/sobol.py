"""Low-discrepancy points in the unit cube: Sobol's sequence, implemented here to avoid a dependency.

The primitive polynomials over GF(2) and the direction numbers of all dimensions are those of Joe and Kuo (2008),
"Constructing Sobol sequences with better two-dimensional projections", SIAM J. Sci. Comput. 30, table new-joe-kuo-6.
In each dimension, every interval [i/2^k, (i + 1)/2^k) contains exactly one of the first 2^k points.
"""

BITS = 32

# (degree s, coefficients a, direction numbers m_1 to m_s) of dimensions 2, 3, ...; dimension 1 is van der Corput's
# sequence.
_DIRECTIONS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1, 0, (1,)),
    (2, 1, (1, 3)),
    (3, 1, (1, 3, 1)),
    (3, 2, (1, 1, 1)),
    (4, 1, (1, 1, 3, 3)),
    (4, 4, (1, 3, 5, 13)),
    (5, 2, (1, 1, 5, 5, 17)),
    (5, 4, (1, 1, 5, 5, 5)),
    (5, 7, (1, 1, 7, 11, 19)),
    (5, 11, (1, 1, 5, 1, 1)),
    (5, 13, (1, 1, 1, 3, 11)),
    (5, 14, (1, 3, 5, 5, 31)),
    (6, 1, (1, 3, 3, 9, 7, 49)),
    (6, 13, (1, 1, 1, 15, 21, 21)),
    (6, 16, (1, 3, 1, 13, 27, 49)),
)
DIMENSIONS = 1 + len(_DIRECTIONS)


def _vectors(dimension: int) -> list[int]:
    if dimension == 0:
        return [1 << (BITS - 1 - bit) for bit in range(BITS)]
    degree, coefficients, numbers = _DIRECTIONS[dimension - 1]
    vectors = [number << (BITS - 1 - bit) for bit, number in enumerate(numbers)]
    for bit in range(degree, BITS):
        value = vectors[bit - degree] ^ (vectors[bit - degree] >> degree)
        for term in range(1, degree):
            if coefficients >> (degree - 1 - term) & 1:
                value ^= vectors[bit - term]
        vectors.append(value)
    return vectors


_VECTORS = [_vectors(dimension) for dimension in range(DIMENSIONS)]


def point(index: int, dimension: int) -> float:
    """Return a coordinate, in [0, 1), of point number `index` of the sequence in Gray-code order; both count from 0."""
    gray, value = index ^ (index >> 1), 0
    for bit in range(gray.bit_length()):
        if gray >> bit & 1:
            value ^= _VECTORS[dimension][bit]
    return float(value / 2**BITS)
