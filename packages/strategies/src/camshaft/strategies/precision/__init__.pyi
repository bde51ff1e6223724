from camshaft.strategies.precision.choice import PRECISIONS as PRECISIONS
from camshaft.strategies.precision.choice import choose_precision as choose_precision
from camshaft.strategies.precision.formats import AutocastPrecision as AutocastPrecision
from camshaft.strategies.precision.formats import Precision as Precision
from camshaft.strategies.precision.formats import TruePrecision as TruePrecision
from camshaft.strategies.precision.gradient_scaling import ScaledPrecision as ScaledPrecision
