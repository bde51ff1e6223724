from camshaft.compat.eras.adapter import extend as extend
from camshaft.compat.eras.reading import EraReading as EraReading
from camshaft.compat.eras.reading import conflicts as conflicts
from camshaft.compat.eras.reading import read_era as read_era
from camshaft.compat.eras.reading import read_receivers as read_receivers
from camshaft.compat.eras.report import describe as describe
