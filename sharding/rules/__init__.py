"""Operator rules, one module per operator family; importing this package registers them all in ``RULES``."""

from sharding.rules import along_axis as along_axis
from sharding.rules import attention as attention
from sharding.rules import contrib as contrib
from sharding.rules import conv as conv
from sharding.rules import einsum as einsum
from sharding.rules import elementwise as elementwise
from sharding.rules import experts as experts
from sharding.rules import fused_products as fused_products
from sharding.rules import indexing as indexing
from sharding.rules import layout as layout
from sharding.rules import matmul as matmul
from sharding.rules import normalization as normalization
from sharding.rules import pieces as pieces
from sharding.rules import pooling as pooling
from sharding.rules import qlinear as qlinear
from sharding.rules import quantization as quantization
from sharding.rules import recurrent as recurrent
from sharding.rules import reduction as reduction
from sharding.rules import reshape as reshape
from sharding.rules import shape as shape
from sharding.rules.base import RULES as RULES
