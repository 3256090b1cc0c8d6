"""FedAvg with and without the window average, on digits split one class per client."""

import wima
from wima.data.sets.digits import digits
from wima.models import MLP

data = digits(num_clients=100, alpha=0.0)
task = wima.make_task(MLP, data.train, (data.x_test, data.y_test))
result = wima.run(
    task, wima.FedAvg(), averagers=wima.WIMA(50), rounds=200, clients_per_round=5, lr=0.1
)
print(result.summary())
